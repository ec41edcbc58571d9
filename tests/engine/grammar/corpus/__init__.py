"""JSON schemas as clients write them: arguments of functions. The mix of features is
JSONSchemaBench's; the schemas are ours."""

from tests.engine.grammar.corpus.functions import FUNCTIONS

CORPUS = FUNCTIONS

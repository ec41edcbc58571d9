"""Keeps transformers from importing scikit-learn, a second of a core in every process that loads a
model: only its assisted decoding, which nothing here uses, needs it. Import it before its models.
"""

import transformers.utils

transformers.utils.is_sklearn_available = lambda: False

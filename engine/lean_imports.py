"""Imports transformers' models without what only parts of them need that nothing here uses: 2.3
seconds of a core in every process that loads a model. Import it before they are imported otherwise.

- scikit-learn, for assisted decoding, and scipy, for the losses of object detection.
- torch.distributed.tensor, for transformers' own tensor parallelism; Spindle's is in
  engine/parallel/.
- torch._dynamo, for decorators that tell a compiler what to leave alone; no forward of
  transformers' is compiled here. Code that imports it later gets the real module.
"""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import transformers.utils
import transformers.utils.import_utils

_DYNAMO = "torch._dynamo"
_INDEXING = "torch._dynamo._trace_wrapped_higher_order_op"


def _undecorated(function: Any = None, *_arguments: object, **_options: object) -> Any:
    """What a decorator of torch._dynamo's makes of a function that is never compiled."""
    return function if callable(function) else _undecorated


def _transform_get_item_to_index() -> Any:
    """The context in which masks are made by vmap; imports its module where it is entered."""
    return import_module(_INDEXING).TransformGetItemToIndex()


@contextmanager
def _without_dynamo() -> Iterator[None]:
    """Whatever imports torch._dynamo gets its decorators only."""
    if _DYNAMO in sys.modules:
        yield
        return
    dynamo, indexing = ModuleType(_DYNAMO), ModuleType(_INDEXING)
    vars(dynamo)["__getattr__"] = lambda _name: _undecorated
    vars(indexing)["TransformGetItemToIndex"] = _transform_get_item_to_index
    sys.modules |= {_DYNAMO: dynamo, _INDEXING: indexing}
    try:
        yield
    finally:
        del sys.modules[_DYNAMO], sys.modules[_INDEXING]


def _contexts_of_new_models(*arguments: Any) -> list[AbstractContextManager[Any]]:
    """A model is made without weights first, by functions of torch that have such decorators."""
    return [*_known_contexts(*arguments), _without_dynamo()]


transformers.utils.is_sklearn_available = lambda: False
transformers.utils.is_scipy_available = lambda: False
for module in (transformers.utils, transformers.utils.import_utils):
    module.is_torch_distributed_available = lambda: False
with _without_dynamo():
    import transformers.masking_utils
    import transformers.models.auto.auto_factory
    from transformers import PreTrainedModel
_known_contexts = PreTrainedModel.get_init_context.__func__
PreTrainedModel.get_init_context = classmethod(_contexts_of_new_models)

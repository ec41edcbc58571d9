"""Imports transformers' models without what only parts of them need that nothing here uses: a
second and a half of a core in every process that loads a model. Import it before they are imported
otherwise. Read in transformers 5.

- scikit-learn, for assisted decoding, and scipy, for the losses of object detection.
- torch.distributed.tensor, for transformers' own tensor parallelism.
"""

import transformers.utils
import transformers.utils.import_utils

transformers.utils.is_sklearn_available = lambda: False
transformers.utils.is_scipy_available = lambda: False
for module in (transformers.utils, transformers.utils.import_utils):
    module.is_torch_distributed_available = lambda: False

from cluster.numba_internals import use_source_cache

use_source_cache()

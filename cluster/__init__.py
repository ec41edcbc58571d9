from cluster.compiled import use_source_cache

use_source_cache()

from cluster.compiled import keep_by_source

keep_by_source()

"""All code that depends on vLLM's internals; written for vLLM 0.32, other versions are refused.

core.py runs vLLM's engine core step by step; the caller gives each step its requests and drafts.
Three parts of vLLM are replaced for that, by dotted paths that its workers can import: the
scheduler (scheduler.py), the proposer and the sampler (worker.py, which also hands out features).
support.py checks that this vLLM has what they rely on.
"""

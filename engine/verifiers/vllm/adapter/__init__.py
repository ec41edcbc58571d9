"""All contact with vLLM's internals. Written against 0.32, and refused on anything else.

vLLM's engine core runs here step by step, and each step says who takes part in it and with which
draft. Three things of vLLM are replaced for that, by dotted paths that its workers can import:
the scheduler's choice of requests (scheduler.py), the proposer (drafts come from outside), and the
sampler (both in worker.py). core.py is the engine core with them; support.py checks that this vLLM
has what they rely on.
"""

# CPU, the native backend: docker build --build-arg PIP_EXTRA_INDEX_URL=... -t spindle:0.1.0 .
# CUDA, both backends:     docker build --target cuda -t spindle:0.1.0-cuda .
# The first needs the index that the page "Get started" of PyTorch names for its CPU builds.
ARG DEBIAN=debian:12.11-slim

FROM $DEBIAN AS python
RUN apt-get update \
  && apt-get install -y --no-install-recommends python3 libgomp1 \
  && rm -rf /var/lib/apt/lists/* /var/cache/apt/*

FROM python AS pip
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv
RUN python3 -m venv /venv
COPY constraints /constraints

FROM pip AS cpu-packages
ARG PIP_EXTRA_INDEX_URL
# What nothing here uses, a ninth of it all: torch's tests and headers, and Ray's Java.
RUN /venv/bin/pip install -q --no-cache-dir --no-deps -r /constraints/cpu.txt \
  && cd /venv/lib/python3*/site-packages \
  && rm -r torch/test torch/include torch/bin/*[tT]est* torch/bin/protoc* ray/jars

FROM pip AS cuda-packages
RUN /venv/bin/pip install -q --no-cache-dir --no-deps \
  -r /constraints/gpu.txt -r /constraints/vllm-gpu.txt

FROM python AS spindle
RUN useradd --uid 1000 --create-home spindle && install -d -o spindle /cache
WORKDIR /spindle
COPY . .
RUN rm -r constraints && python3 -m compileall -q .
# Models and compiled loops, which the first start makes: keep it over restarts.
VOLUME /cache
ENV PATH=/venv/bin:/usr/local/bin:/usr/bin:/bin PYTHONPATH=/spindle \
  SPINDLE_CACHE=/cache HF_HOME=/cache/huggingface
# cluster/serve.env
ENV OMP_WAIT_POLICY=PASSIVE \
  RAY_worker_niceness=0 \
  BAD_RUNTIME_ENV_CACHE_TTL_SECONDS=5 \
  RAY_SERVE_THROUGHPUT_OPTIMIZED=1 \
  RAY_SERVE_ENABLE_DIRECT_INGRESS=0 \
  RAY_SERVE_LOG_TO_STDERR=1 \
  RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE=1 \
  RAY_SERVE_USE_GRPC_BY_DEFAULT=1 \
  RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S=2 \
  RAY_RUNTIME_ENV_HOOK=deployments.stopping.in_serve_run \
  RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=deployments.proxy:middlewares \
  RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH=2147483647 \
  SPINDLE_HTTP_TIMEOUT_S=30 \
  SPINDLE_HTTP_CONNECTIONS=4096 \
  FORWARDED_ALLOW_IPS=
USER spindle
HEALTHCHECK --interval=30s --timeout=5s --start-period=5m \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health')"]

FROM spindle AS cuda
USER root
# Triton and vLLM compile kernels while they start.
RUN apt-get update \
  && apt-get install -y --no-install-recommends g++ python3-dev \
  && rm -rf /var/lib/apt/lists/* /var/cache/apt/*
COPY --from=cuda-packages /venv /venv
USER spindle
CMD ["serve", "run", "cluster/recipes/one_gpu.yaml"]

FROM spindle AS cpu
COPY --from=cpu-packages /venv /venv
CMD ["sh", "-c", "python -m cluster.fetch && exec serve run cluster.yaml"]

"""Call Spindle from another process of its Ray cluster, by a Serve handle, without HTTP.

    RAY_AUTH_MODE=token python examples/ray_handle.py --model NAME

NAME is what GET /v1/models lists. The process needs Ray, and nothing of Spindle on its path: fields
and answers are plain dictionaries, those of the HTTP API (docs/handles.md).
"""

import argparse

import ray
from ray import serve


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--model", required=True)
    arguments.add_argument("--question", default="What is gravity?")
    chosen = arguments.parse_args()
    ray.init("auto", log_to_driver=False)
    spindle = serve.get_app_handle("spindle")
    question = {"role": "user", "content": chosen.question}
    fields = {"model": chosen.model, "messages": [question], "max_tokens": 40, "temperature": 0}

    answer = spindle.generate.remote(fields).result(timeout_s=60)
    if "error" in answer:  # nothing is raised for a bad request
        raise SystemExit(answer["error"]["message"])
    print("whole: ", answer["choices"][0]["message"]["content"])

    print("stream:", end=" ")
    for chunk in spindle.options(stream=True).stream.remote({**fields, "speculation": "off"}):
        for choice in chunk["choices"]:
            print(choice["delta"].get("content", ""), end="", flush=True)
    print()


if __name__ == "__main__":
    main()

"""Tasks as the conversations that the built-in models were trained on."""

from benchmarks.prompts.tasks import Task
from policies.scheduling.rank_prompts import Message


def user_message(task: Task) -> list[Message]:
    return [{"role": "user", "content": task.prompt}]


def chat_text(messages: list[Message]) -> str:
    """The same text as `apply_chat_template`, without the cost of Jinja for every sample."""
    turns = "".join(f"<|{message['role']}|>{message['content']}<|end|>" for message in messages)
    return turns + "<|assistant|>"

"""The base of all objects in a client's request."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"is no Unicode text: {error.reason}") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]


class Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, given: object) -> object:
        """A null counts as absent, as in OpenAI's API. Unknown fields are kept, and then
        refused."""
        if not isinstance(given, dict):
            return given
        return {
            name: value
            for name, value in given.items()
            if value is not None or name not in cls.model_fields
        }

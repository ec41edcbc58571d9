"""Who runs: schedules by name, and what composes with each of them."""

"""Many nodes at once: asking them all, finding a run among them, placing a job, following runs."""

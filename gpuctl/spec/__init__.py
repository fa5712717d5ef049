"""inventory.yaml and jobs/*.yaml: read, checked as a whole, rendered into run specs.

What others use: `inventory.find_inventory`, `inventory.load_inventory`, `job.load_job`, `adhoc.job_from_argv`,
`render.render`, `writing.to_yaml`, `schema.schema`, `durations.seconds`. Everything wrong with a file comes as one
`BadFile` with all of its faults.
"""

"""What outlives the process: tenants, keys, prompts, rules, the request log and its roll-ups, the audit log."""

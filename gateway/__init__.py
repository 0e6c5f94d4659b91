"""The gateway: everything that a user touches. Never loads torch."""

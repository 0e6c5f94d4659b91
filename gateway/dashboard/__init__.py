"""The dashboard: its page, its files, and who is logged in. Knows nothing of the numbers, which are the admin API's."""

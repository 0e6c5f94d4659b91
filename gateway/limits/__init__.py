"""How much each tenant and key may ask for: what the limits are, how it is counted, and what a refusal says."""

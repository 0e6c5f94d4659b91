"""How the tables came to be, one file a step. `prefixgate db upgrade` runs them; alembic's own command does too."""

"""The description of the HTTP interface, in OpenAPI 3.1."""

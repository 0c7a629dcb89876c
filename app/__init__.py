"""The thinwire command, its configuration, and what it needs of Ray and MLflow."""

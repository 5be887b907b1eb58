"""What a study confirms, refutes or leaves open."""

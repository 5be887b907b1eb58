"""What turns runs into knowledge. Reads run folders; imports no model code."""

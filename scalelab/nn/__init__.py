"""Parts of neural models. No part knows a family: families pass their differences as arguments."""

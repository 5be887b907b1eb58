"""Parts of neural nets. No part knows a family: what differs between families is passed in."""

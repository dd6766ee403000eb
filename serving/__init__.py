"""What stands in front of stage 6: the fields of a request, and many of them as JSON lines."""

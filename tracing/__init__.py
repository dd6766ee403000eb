"""What watches a loop: the record of its turns, and the table, the plot and the page of it."""

"""Pages: the differences of versions, the queue of reviews, and the page of a decision."""

"""Two executions of one model that disagree, cut to the smallest sub-model that still does."""

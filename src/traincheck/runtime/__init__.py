"""Runtime: launches the program and joins the stages in each observed process."""

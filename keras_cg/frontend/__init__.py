"""The decorated function: it binds the arguments, runs the user's function, calls the rule and checks its gradients."""

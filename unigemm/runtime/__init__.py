"""From a call to a launch: options, binding, loading."""

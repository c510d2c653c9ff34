"""What every room stands on and that knows none of them: errors, files, settings, the registry, Gram matrices."""

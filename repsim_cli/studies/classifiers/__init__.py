"""What do models learn when they are tuned as classifiers?"""

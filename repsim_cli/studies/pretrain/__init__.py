"""What does a language model learn, checkpoint by checkpoint?"""

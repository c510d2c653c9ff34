"""What a command or a program asks for -> a composed configuration -> a checked study."""

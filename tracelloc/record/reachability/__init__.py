"""Finds the blocks to which nothing in the process points any more: lost memory."""

"""Analysis of machine code, disassembled by capstone, for workers only."""

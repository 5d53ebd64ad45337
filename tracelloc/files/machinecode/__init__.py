"""Machine code, disassembled by capstone: only workers do so."""

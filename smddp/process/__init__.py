"""What launchers and containers do with processes: signals, lines of output, trees and exit codes. No torch here."""

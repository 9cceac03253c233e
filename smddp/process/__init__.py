"""Processes of launchers and containers: signals, lines of output, process trees and exit codes. No torch here."""

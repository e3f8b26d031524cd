"""What a returned point satisfies, measured apart from every algorithm: rows, gap, contradiction, proved bounds."""

"""Web pages as text: what of a page is its content, and how it is written.

head         title, date, language, address, licence and robots: what a page says of itself
dates        dates that machines were meant to read
commons      Creative Commons licences by the addresses of their deeds
linkeddata   what JSON-LD says of the page or its article
attributes   of a start tag
"""

//! What came out, for people: a page, and a text for each paper.

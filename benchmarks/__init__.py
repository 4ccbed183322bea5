"""Side-by-side measurements of Stoker and its peers. Nothing here is imported by the product."""

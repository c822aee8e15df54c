"""Every interleaving of a few processes of a short protocol, with the product's own decisions; equal states are explored once."""

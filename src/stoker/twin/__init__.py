"""A simulated cloud: Azure's wire protocols over machines of this computer. The server imports nothing from here."""

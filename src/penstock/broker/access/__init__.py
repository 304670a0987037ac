"""Who may do what: access rules, users and quotas of the cluster, as handlers use them."""

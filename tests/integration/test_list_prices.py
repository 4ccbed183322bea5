"""What a cloud would cost, on a computer where no cloud is set up."""

from __future__ import annotations

import json

from shell import Shell


def test_a_plan_for_a_cloud_that_is_not_set_up_shows_list_prices_and_a_run_is_refused(shell: Shell) -> None:
    shell.write("train.py", "print(1)")
    shell.job("python train.py")
    asked = ("--on", "azure", "--hours", "10", "--gpu", "A10", "--budget", "20", "--deadline", "12h")
    shown = shell.stoker("plan", *asked).stdout
    assert "Azure is not set up on this computer: these are list prices" in shown
    assert "prices of 2025-01-01, " in shown and " months old" in shown
    assert "to get today's: python -m stoker.providers.azure.market.refresh" in shown
    assert "Standard_NV36ads_A10_v5" in shown and "spot" in shown and "on demand" in shown, shown
    assert "for 10 hours of work" in shown and "the budget is $20.00" in shown
    told = json.loads(shell.stoker("plan", "--on", "azure", "--twin", "--json").stdout)
    assert told["plan"]["offer"]["provider"] == "azure-twin" and told["plan"]["offer"]["priced_at"]
    fixed = shell.stoker("plan", *asked, "--set", "spot=false", "--budget", "200").stdout
    assert "on demand" in fixed and " spot " not in fixed, "what the job rules out is not proposed"
    [wrong] = shell.refused("plan", "--on", "azure", "--gpu", "A11")["problems"]
    assert wrong["found"] == "`A11`" and "`T4`, `A10`" in wrong["expected"]
    nowhere = shell.refused("plan", "--twin")
    assert "`azure`" in nowhere["message"] and "`--on azure`" in nowhere["hint"]
    assert shell.refused("run", "--on", "azure", code=125)["code"] == "not-set-up"
    assert json.loads(shell.stoker("ps", "--json").stdout)["runs"] == []

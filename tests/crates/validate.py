"""Validate a crate with roc-validator, without network: `validate.py CRATE`, by the Python that has the validator.

The validator ships the rules of the profiles, but requests the JSON-LD context of RO-Crate 1.1. The library rocrate has
that of 1.3, in which the terms that a crate of ours uses have the same addresses.
"""

import io
import json
import sys
from importlib import resources

import requests
from rocrate_validator import services
from rocrate_validator.models import Severity

CONTEXT = "https://w3id.org/ro/crate/1.1/context"


def answer(_, request, **__):
    """The context; no other request leaves this machine."""
    if request.url != CONTEXT:
        raise requests.ConnectionError(f"{request.url} is not asked: this validation has no network")
    shipped = json.loads((resources.files("rocrate") / "data" / "ro-crate.jsonld").read_text(encoding="utf-8"))
    response = requests.Response()
    response.status_code, response.url, response.request = 200, request.url, request
    response.headers["Content-Type"] = "application/ld+json"
    response.raw = io.BytesIO(json.dumps({"@context": shipped["@context"]}).encode())
    return response


def main(crate, severity="REQUIRED"):
    """Print what was checked, and each issue as a line of JSON; 1 if there are any."""
    requests.adapters.HTTPAdapter.send = answer
    settings = services.ValidationSettings(
        rocrate_uri=crate,
        profile_identifier="process-run-crate",
        requirement_severity=Severity[severity],
        no_cache=True,
    )
    result = services.validate(settings)
    for issue in result.get_issues():
        found = {"check": issue.check.identifier, "severity": issue.severity.name, "message": issue.message}
        print(json.dumps(found | {"entity": str(issue.violatingEntity), "value": str(issue.violatingPropertyValue)}))
    profiles = sorted({check.requirement.profile.identifier for check in result.executed_checks})
    print(json.dumps({"checks": len(result.executed_checks), "profiles": profiles}))
    return int(result.has_issues())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

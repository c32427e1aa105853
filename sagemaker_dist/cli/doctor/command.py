# SPDX-License-Identifier: Apache-2.0
"""The command `doctor`: checks everything that a job needs, and prints IAM policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import click
from rich.text import Text

from sagemaker_dist.cli import screen
from sagemaker_dist.cli.doctor import account, file_systems, machine, vpc_checks
from sagemaker_dist.cli.doctor.rows import Row, Status, fail, unknown
from sagemaker_dist.cli.dry_run_session import ACCOUNT, REGION, DryRunSession
from sagemaker_dist.cli.iam_policy import fill_in, policy, role_permissions
from sagemaker_dist.cli.job_names import code_of
from sagemaker_dist.cli.plan_command import Plan, planned
from sagemaker_dist.cli.shared_options import FILE, aws_options, json_option, set_option
from sagemaker_dist.errors import OptionError, SetupError
from sagemaker_dist.jobs.job_checks import is_local
from sagemaker_dist.jobs.job_file import read_job_file
from sagemaker_dist.packaging import account_of, boto_session
from sagemaker_dist.planning.locations import S3

_FAILED: Final = 1
_UNCHECKED: Final = "account"  # name of the row for checks that need credentials
_WAYS: Final = frozenset({"local runtime", "image here", "credentials"})  # one is enough for a job
_COLOURS: Final[dict[Status, str]] = {
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
    "unknown": "dim",
}


@click.command()
@click.argument("file", type=FILE, required=False)
@set_option
@click.option("--iam", is_flag=True, help="Print the IAM policy for submitting FILE.")
@click.option("--iam-role", is_flag=True, help="Print the IAM policy for the role of FILE's job.")
@json_option
@aws_options
def doctor(
    *,
    file: Path | None, settings: tuple[str, ...], iam: bool, iam_role: bool, as_json: bool,
    region: str | None, profile: str | None,
) -> int:  # fmt: skip
    """Check whether this machine and account can run the job of FILE; without FILE, any job.

    Exits with 1 if a check fails. A check is "unknown" if AWS does not permit it. Without FILE,
    checks of AWS can only warn, unless --region or --profile is passed. With --iam or --iam-role,
    an IAM policy is printed, and nothing is checked.
    """
    _check_options(file, settings, iam=iam, iam_role=iam_role)
    session = boto_session(region, profile)
    plan = None if file is None else _planned(file, settings, session.region_name)
    if plan is not None and (iam or iam_role):
        _print_policy(plan, session, of_role=iam_role)
        return 0
    rows = list(diagnosis(session, plan, needs_aws=bool(plan or region or profile)))
    if as_json:
        screen.print_json([asdict(each) for each in rows])
    else:
        _show(rows)
    return _FAILED if any(each.status == "fail" for each in rows) else 0


def _check_options(
    file: Path | None, settings: tuple[str, ...], *, iam: bool, iam_role: bool
) -> None:
    """Check the options of the command `doctor`.

    Raises:
        OptionError: An option needs FILE, or excludes another option.
    """
    if iam and iam_role:
        why, hint = "one policy is printed", "Pass one of them"
        raise OptionError("--iam and --iam-role are passed together", why, hint)
    flag = "--iam" if iam else "--iam-role" if iam_role else ""
    if file is None and flag:
        raise OptionError(f"{flag} has no FILE", "the policy depends on the job", "Pass a job file")
    if file is None and settings:
        what = f"--set {settings[0]!r} has no FILE"
        raise OptionError(what, "--set changes a value of a job file", "Pass a job file")


def _planned(file: Path, settings: tuple[str, ...], region: str | None) -> Plan:
    return planned(read_job_file(file, settings).job(session=DryRunSession(region=region)))


def diagnosis(session: Any, plan: Plan | None, *, needs_aws: bool = True) -> Iterator[Row]:
    """Yield the results of all checks for the job of `plan`.

    If `plan` is None, only checks that do not depend on a job are made. For a local job, only this
    machine is checked, and AWS is not called. Without `needs_aws`, checks of AWS do not fail: jobs
    of this machine need none. It fails if no kind of job can run.
    """
    job = None if plan is None else plan.job
    here = str(job.instance_type) if job is not None and is_local(job) else None
    framework = "torch" if job is None else job.framework
    local = list(machine.machine_rows(framework=framework, local_type=here))
    yield from local
    if here is not None:
        return
    aws = list(_aws_rows(session, plan, framework))
    if needs_aws:
        yield from aws
        return
    yield from (_optional(each) for each in aws if each.name != _UNCHECKED)
    ready = [each for each in local if each.status == "ok"]
    ready += [each for each in aws if each.status != "fail"]
    if not any(each.name in _WAYS for each in ready):
        yield fail("jobs", "no job can run: see the rows above", "Follow one of the hints")


def _optional(row: Row) -> Row:
    """Return a row of AWS for a user who may want jobs of this machine alone."""
    if row.status != "fail":
        return row
    return replace(row, status="warn", text=f"{row.text}; only jobs on SageMaker need it")


def _aws_rows(session: Any, plan: Plan | None, framework: str) -> Iterator[Row]:
    yield account.region_row(session)
    known = account.credentials_row(session)
    yield known
    if known.status in {"ok", "warn"}:
        yield from _account_rows(session, plan, framework)
    else:
        text = "role, image, buckets, quotas and network need credentials to be checked"
        yield unknown(_UNCHECKED, text)


def _account_rows(session: Any, plan: Plan | None, framework: str) -> Iterator[Row]:
    image = None if plan is None else plan.job.image_uri
    yield from account.image_rows(session, framework, image)
    if plan is None:
        return
    types = [each.type for each in plan.hosts if each.instance and each.instance.has_gpu]
    if types:
        yield from account.gpu_code_rows(session, framework, image, types)
    yield from account.role_rows(session, str(plan.job.role))
    buckets = _buckets(plan)
    own = account_of(session) if any(ACCOUNT in each for each in buckets) else ""
    names = [fill_in(each, account=own, region=session.region_name) for each in buckets]
    yield from account.bucket_rows(session, names)
    yield from account.quota_rows(session, plan.hosts, is_spot=plan.job.use_spot_instances)
    yield from _network_rows(session, plan)


def _network_rows(session: Any, plan: Plan) -> Iterator[Row]:
    vpc = plan.request.get("VpcConfig")
    if vpc is None:
        return
    num_hosts = sum(each.count for each in plan.hosts)
    found = None
    for row, found in vpc_checks.network_rows(  # noqa: B007 - `found` is read after the loop
        session, vpc["Subnets"], vpc["SecurityGroupIds"], num_hosts
    ):
        yield row
    for channel in plan.request.get("InputDataConfig", []):
        source = channel["DataSource"].get("FileSystemDataSource")
        if source is None:
            continue
        if found is None:
            yield unknown(source["FileSystemId"], "not checked without subnets and security groups")
        else:
            yield from file_systems.file_system_rows(session, source, found)


def _buckets(plan: Plan) -> list[str]:
    """Return the names of a job's S3 buckets: data, model, code and checkpoints; each once."""
    request = plan.request
    sources = [
        each["DataSource"].get("S3DataSource") for each in request.get("InputDataConfig", [])
    ]
    places = [
        request["OutputDataConfig"]["S3OutputPath"],
        request.get("CheckpointConfig", {}).get("S3Uri", ""),
        code_of(plan.job)[0],
        *(each["S3Uri"] for each in sources if each),
    ]
    names = [each.removeprefix(S3).partition("/")[0] for each in places if each.startswith(S3)]
    return list(dict.fromkeys(name for name in names if not name.startswith("arn:")))


def _print_policy(plan: Plan, session: Any, *, of_role: bool) -> None:
    statements = role_permissions(plan.job, plan.request) if of_role else plan.permissions
    if not statements:
        who = "its role" if of_role else "the user who starts it"
        screen.note(f"the job runs on this machine: {who} needs no AWS permissions")
        screen.print_json(policy([]))
        return
    try:
        own = account_of(session)
    except SetupError:
        own = ACCOUNT
        screen.note("the account is unknown: replace <account>")
    region = session.region_name or REGION
    if region == REGION:
        screen.note("no region is set: replace <region>, or pass --region")
    screen.print_json(fill_in(policy(statements), account=own, region=region))


def _show(rows: list[Row]) -> None:
    widest = max(len(each.name) for each in rows if len(each.name) <= 24)
    for each in rows:
        status = Text(f"{each.status:<7}", style=_COLOURS[each.status])
        _show_row(each, status, widest)
    counts = Counter(each.status for each in rows)
    screen.line()
    screen.line(", ".join(f"{counts[status]} {status}" for status in _COLOURS if counts[status]))


def _show_row(row: Row, status: Text, widest: int) -> None:
    taken = 7 + 2 + widest + 2
    first, *more = screen.wrapped(row.text, taken)
    screen.line(Text.assemble(status, "  ", f"{row.name:<{widest}}  ", first))
    for each in more:
        screen.line(" " * taken + each)
    if row.hint:  # a command is printed on one line, so that users can copy it
        is_command = row.hint.startswith("Run:")
        parts = [row.hint] if is_command else screen.wrapped(row.hint, taken + 3)
        for number, each in enumerate(parts):
            screen.line(Text(f"{' ' * taken}{'   ' if number else '-> '}{each}", style="dim"))

"""The pages and their URLs.

Each request renders its page anew, and a shown page polls for itself: a page has no state of its own.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from jinja2 import Environment, PackageLoader
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from estimators.console import drawing
from estimators.console.job_watch import JobWatch, MetricCurve, Watches
from estimators.console.jobs import SPANS, STATUSES, JobFilter, JobSource, compared, job_page
from estimators.errors import EstimatorError, shown_reason
from estimators.job_handle.resumed_request import sent_request
from estimators.service_model import service_model, violations
from smddp.display_text import as_size, duration, shown_line
from smddp.errors import SmddpError
from smddp.secret_text import masked, masked_text

MOST_COMPARED = 8
MOST_LINES = 400
"""Most lines in one answer."""
LIST_SECONDS, JOB_SECONDS = 5, 2
"""Seconds between two polls of a page while its content may change."""
_FIRST_LOOK_SECONDS = 0.5
_PARTS = "time_"
"""Prefix of the metrics that divide up a step's time."""


class Pages:
    """The pages about the jobs of one source."""

    def __init__(self, source: JobSource, root: str) -> None:
        """Load the templates, for pages below the path `root`. Sends no request."""
        self._source = source
        self._root = root
        self.watches = Watches(source)
        self._templates = Environment(
            loader=PackageLoader("estimators.console"), autoescape=True, trim_blocks=True, lstrip_blocks=True
        )
        self._templates.globals.update(
            root=root, source=source, chart_size=(drawing.WIDTH, drawing.HEIGHT), box=drawing
        )
        self._templates.filters.update(
            clock=_clock, iso=_iso, duration=duration, reason=shown_reason, shown=_shown, size=as_size
        )

    def app(self) -> Starlette:
        """Return the pages as an ASGI application."""
        job = "/jobs/{name}"
        routes: list[Route | Mount] = [
            Route("/", self._jobs),
            Route("/compare", self._compare),
            Route(job, self._job),
            Route(f"{job}/log", self._log),
            Route(f"{job}/lines", self._lines),
            Route(f"{job}/log.txt", self._whole_log),
            Route(f"{job}/checkpoints", self._checkpoints),
            Route(f"{job}/request", self._request),
            Mount("/static", StaticFiles(directory=Path(__file__).with_name("static"))),
        ]
        if self._source.may_write:
            routes.append(Route(f"{job}/{{action}}", self._act, methods=["POST"]))
        return Starlette(
            routes=[Mount(self._root, routes=routes)],
            exception_handlers={
                HTTPException: self._failed,
                ClientError: self._failed,
                BotoCoreError: self._failed,
                EstimatorError: self._failed,
                SmddpError: self._failed,
            },
        )

    def _jobs(self, request: Request) -> Response:
        wanted, token = JobFilter.of(request.query_params), request.query_params.get("after", "")
        page = job_page(self._source.sagemaker, wanted, token)
        return self._page(
            "jobs.html",
            request,
            poll=LIST_SECONDS,
            jobs=page.jobs,
            next_token=page.next_token,
            is_first=not token,
            wanted=wanted,
            statuses=STATUSES,
            spans=SPANS,
        )

    def _job(self, request: Request) -> Response:
        watch = self._watch(request)
        logarithmic = request.query_params.get("scale") == "log"
        began, curves = watch.description["CreationTime"], watch.curves()
        charts = [
            (drawing.chart(name, [_series(watch, curve, began)], logarithmic=logarithmic), curve)
            for name, curve in curves.items()
            if not name.startswith(_PARTS)
        ]
        parts = {name.removeprefix(_PARTS): curve.last for name, curve in curves.items() if name.startswith(_PARTS)}
        return self._job_page(
            "job.html",
            watch,
            request,
            charts=charts,
            parts_of_step={name: share for name, share in parts.items() if share > 0},
            parts_whole=sum(share for share in parts.values() if share > 0),
            hosts=watch.hosts(),
            hyperparameters=masked(watch.description.get("HyperParameters", {})),
            logarithmic=logarithmic,
        )

    def _log(self, request: Request) -> Response:
        watch = self._watch(request)
        return self._job_page("log.html", watch, request, hosts=watch.hosts())

    def _lines(self, request: Request) -> Response:
        watch, query = self._watch(request), request.query_params
        count = min(MOST_LINES, max(0, _integer(query.get("count", ""), MOST_LINES)))
        window = watch.window(
            _integer(query.get("start", ""), -count),
            count,
            search=query.get("search", "")[:200],
            host=query.get("host", "")[:64],
        )
        return JSONResponse(
            {
                "total": window.total,
                "dropped": window.dropped,
                "start": window.start,
                "lines": window.lines,
                "is_read": watch.is_read,
                "has_ended": watch.has_ended,
                "failure": watch.failure,
            }
        )

    def _whole_log(self, request: Request) -> Response:
        watch = self._watch(request)
        window = watch.window(0, 1 << 40)
        text = "".join(f"{_iso(_moment(when))} {host} {line}\n" for _, when, host, line in window.lines)
        name = f"attachment; filename={watch.name}.log"
        return PlainTextResponse(text, headers={"Content-Disposition": name})

    def _checkpoints(self, request: Request) -> Response:
        watch = self._watch(request)
        uri = watch.description.get("CheckpointConfig", {}).get("S3Uri")
        infos = self._source.job(watch.name).checkpoints() if uri else []
        return self._job_page("checkpoints.html", watch, request, uri=uri, infos=infos[::-1], poll=0)

    def _request(self, request: Request) -> Response:
        watch = self._watch(request)
        sent = masked(sent_request(watch.description))
        text = json.dumps(sent, indent=2, ensure_ascii=False, default=str)
        return self._job_page("request.html", watch, request, text=text, poll=0)

    def _compare(self, request: Request) -> Response:
        names = list(dict.fromkeys(request.query_params.getlist("job")))
        if not 2 <= len(names) <= MOST_COMPARED:
            raise HTTPException(400, f"Choose 2 to {MOST_COMPARED} jobs in the list; {len(names)} were chosen.")
        watches = [self._watch_of(name) for name in names]
        for watch in watches:
            watch.look(_FIRST_LOOK_SECONDS)
        curves = [watch.curves() for watch in watches]
        logarithmic = request.query_params.get("scale") == "log"
        charts = [
            drawing.chart(
                metric,
                [
                    _series(watch, each[metric], watch.description["CreationTime"])
                    if metric in each
                    else drawing.Series(job=watch.name, attempts=[], began=watch.description["CreationTime"])
                    for watch, each in zip(watches, curves, strict=True)
                ],
                logarithmic=logarithmic,
            )
            for metric in dict.fromkeys(name for each in curves for name in each)
        ]
        requests = [sent_request(watch.description) for watch in watches]
        hyperparameters = [each.pop("HyperParameters", {}) for each in requests]
        for each in requests:
            each.pop("TrainingJobName")
        return self._page(
            "compare.html",
            request,
            poll=0 if all(watch.has_ended and watch.is_read for watch in watches) else JOB_SECONDS,
            watches=watches,
            charts=charts,
            hyperparameters=compared(hyperparameters),
            requests=compared(requests),
            logarithmic=logarithmic,
        )

    def _act(self, request: Request) -> Response:
        name, action = self._name(request), request.path_params["action"]
        job, shown = self._source.job(name), name
        if action == "stop":
            job.stop()
        elif action == "resume":
            shown = job.resume().name
        elif action == "interrupt" and self._source.interrupt is not None:
            self._source.interrupt(name)
        else:
            raise HTTPException(404, "There is no such action here.")
        return RedirectResponse(f"{self._root}/jobs/{shown}", 303)

    def _name(self, request: Request) -> str:
        return _checked(request.path_params["name"])

    def _watch(self, request: Request) -> JobWatch:
        watch = self._watch_of(self._name(request))
        watch.look(_FIRST_LOOK_SECONDS)
        return watch

    def _watch_of(self, name: str) -> JobWatch:
        return self.watches.of(_checked(name))

    def _job_page(self, template: str, watch: JobWatch, request: Request, **values: Any) -> Response:
        description = watch.description
        now = datetime.now(timezone.utc)
        phases = drawing.phases(description.get("SecondaryStatusTransitions", []), now)
        settled = watch.has_ended and watch.is_read
        return self._page(
            template,
            request,
            **{"poll": 0 if settled else JOB_SECONDS, **values},
            job=description,
            name=watch.name,
            watch=watch,
            phases=phases,
            attempts=max((phase.attempt for phase in phases), default=0),
            whole_seconds=sum(phase.seconds for phase in phases),
            training_seconds=sum(phase.seconds for phase in phases if phase.attempt),
            tab=template.removesuffix(".html"),
        )

    def _page(self, template: str, request: Request, status: int = 200, **values: Any) -> Response:
        query = request.query_params
        text = self._templates.get_template(template).render(query=query, path=request.url.path, **values)
        return HTMLResponse(text, status)

    def _failed(self, request: Request, error: Exception) -> Response:
        status, reason = 502, str(error)
        if isinstance(error, HTTPException):
            status, reason = error.status_code, error.detail
        elif isinstance(error, ClientError):
            code = error.response.get("Error", {}).get("Code", "")
            missing = code in ("ValidationException", "ResourceNotFound", "ResourceNotFoundException")
            status = 404 if missing else 502
        elif isinstance(error, EstimatorError):
            status = 409
        return self._page("failed.html", request, status, poll=0, code=status, reason=reason)


def _checked(name: str) -> str:
    """Return a valid job name, or raise a 404: names become parts of URLs and of log streams."""
    shape: Any = service_model().operation_model("DescribeTrainingJob").input_shape
    if any(violations(shape.members["TrainingJobName"], name)):
        raise HTTPException(404, f"No training job can be called {shown_line(name)[:63]!r}.")
    return name


def _series(watch: JobWatch, curve: MetricCurve, began: datetime) -> drawing.Series:
    return drawing.Series(job=watch.name, attempts=watch.by_attempt(curve.points), began=began)


def _integer(text: str, default: int) -> int:
    try:
        return max(-(1 << 40), min(1 << 40, int(text)))
    except ValueError:
        return default


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)


def _shown(line: str) -> str:
    """Return a log line as a page shows it: control characters removed, secrets masked."""
    return masked_text(shown_line(line))


def _clock(time: datetime) -> str:
    return f"{time.astimezone():%Y-%m-%d %H:%M:%S}"


def _iso(time: datetime) -> str:
    return time.astimezone(timezone.utc).isoformat(timespec="milliseconds")

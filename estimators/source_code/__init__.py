"""The training code of a job: checked before anything is uploaded, and bundled."""

from estimators.source_code.bundle import Bundle as Bundle
from estimators.source_code.bundle import Contents as Contents
from estimators.source_code.bundle import package_wheels as package_wheels
from estimators.source_code.bundle import stage as stage
from estimators.source_code.bundle import tell_of_code_elsewhere as tell_of_code_elsewhere
from estimators.source_code.bundle import write_archive as write_archive
from estimators.source_code.check import check as check
from estimators.source_code.source import PACKAGE as PACKAGE
from estimators.source_code.source import REQUIREMENTS as REQUIREMENTS
from estimators.source_code.source import SourceCode as SourceCode
from estimators.source_code.source import calls_package as calls_package
from estimators.source_code.source import imports_package as imports_package
from estimators.source_code.source import needs_package as needs_package
from estimators.source_code.source import package_directory as package_directory
from estimators.source_code.source import package_requirements as package_requirements
from estimators.source_code.source import with_requirements as with_requirements
